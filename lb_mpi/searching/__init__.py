"""Receiver-initiated stealing: one rank of a search as a pure object, its protocols, and a virtual clock to run it on."""
