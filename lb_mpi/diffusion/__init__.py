"""Diffusion of load between neighbours on a process graph; pure."""
