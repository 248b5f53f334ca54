"""Advice: a recorded run, replayed on a virtual clock with other ways of balancing and other machines."""
