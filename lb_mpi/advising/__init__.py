"""What would help: a recorded run, played again on a virtual clock with other ways of balancing and other machines."""
