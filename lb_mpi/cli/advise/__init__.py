"""Advice: replay a recorded run on a virtual clock with other ways of balancing and on other machines."""
