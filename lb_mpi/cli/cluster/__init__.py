"""A slow rank and a slow network of hosts, emulated on one machine."""
