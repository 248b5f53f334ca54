"""Tags of the messages on our communicators."""

from __future__ import annotations

from enum import IntEnum


class Tag(IntEnum):
    """Tags on our communicators: one table, so that no two kinds of messages are confused."""

    FAILURE = 0  # every wait: a rank cannot go on
    QUESTION = 1  # every wait: what does this rank do?
    START = 2  # pool, root to all: a map
    RESULTS = 3  # pool, to the root: of a map, or of tasks of an executor
    STEAL = 4  # pool, between ranks of different hosts: ASK, GIVE
    END = 5  # pool, root to all: the map is over
    TASK = 6  # pool, root to one: tasks of an executor
    CLOSE = 7  # pool, root to all: the pool is closed
    DRAFTING = 8  # search: all its messages
    LENDING = 9  # Balancer.map_rows: rows lent, and their results
    MIGRATION = 10  # Balancer.migrate: rows that change their owner
    NEIGHBOUR = 11  # Balancer: numbers for a neighbour
    PART = 12  # distribute: a rank's part of the graph
    PING = 13  # measure: messages of several sizes
    CLOCK = 14  # records: the clocks of two hosts
    ANNOUNCED = 15  # parcels: the content of an announced parcel
    PROFILE = 16  # profile: clocks and measurements of the ranks
    VALUE = 17  # gather: a large value
    BARRIER = 18  # every close, before calls that block: the sender, and those whose messages it has received, are there
    REBALANCE = 19  # HaloPlan.rebalance: numbers, labels and vertices for neighbours
    REDUCTION = 20  # Balancer and HaloPlan.rebalance: numbers for all ranks, where these are few
    CALL = 21  # every wait: the call that the sender waits in
    STOP = 22  # pool, root to all: begin nothing more of the map, and send the results of what was begun
    HALO = 1000  # this and all tags above, up to MOST: a plan's exchange, by kind of values


MOST = 32_767  # MPI promises tags up to this one
