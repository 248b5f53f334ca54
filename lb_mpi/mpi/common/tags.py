"""The tags of all messages on communicators of our own: one table, so that no two kinds of messages can be mixed up."""

from __future__ import annotations

from enum import IntEnum


class Tag(IntEnum):
    """Who receives a message."""

    FAILURE = 0  # every wait: a rank can't go on
    ROLL_CALL = 1  # every wait: who is here?
    START = 2  # pool, root to all: a map
    RESULTS = 3  # pool, to the root
    STEAL = 4  # pool, between ranks of different hosts: ASK, GIVE
    END = 5  # pool, root to all: the map is over
    TASK = 6  # pool, root to one: a submitted task
    RESULT = 7  # pool, to the root: its result
    CLOSE = 8  # pool, root to all: the pool is closed
    DRAFTING = 9  # search: all its messages
    LENDING = 10  # Balancer.map_rows: rows lent, and their results
    MIGRATION = 11  # Balancer.migrate: rows for good
    NEIGHBOUR = 12  # NeighbourExchange: a rank's numbers
    PART = 13  # distribute: a rank's part of the graph
    PING = 14  # measure: messages of several sizes
    CLOCK = 15  # records: the clocks of two hosts
    ANNOUNCED = 16  # parcels: the bytes of a parcel that was announced
    HALO = 1000  # this and all above, up to MOST: a plan's exchange, by kind of values


MOST = 32_767  # MPI promises tags up to this one
