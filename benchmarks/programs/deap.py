"""Genetic programming: formulas that fit a polynomial, some of them long, some short.

Source: DEAP's example "Symbolic Regression Problem: Introduction to GP", with more points, and its tutorial "Using Multiple
Processors" (`toolbox.register("map", ...)`).
"""

from __future__ import annotations

import operator
import random
from typing import Any

from deap import algorithms, base, creator, gp, tools
from mpi4py.futures import MPICommExecutor

import lb_mpi
from benchmarks.programs.script import main, task

NEEDS = {"deap": "deap"}
POINTS = [x / 600.0 for x in range(-600, 600)]


def divide(left: float, right: float) -> float:
    """Divide, but not by zero."""
    return left / right if right else 1.0


pset = gp.PrimitiveSet("MAIN", 1)
for function, arity in ((operator.add, 2), (operator.sub, 2), (operator.mul, 2), (divide, 2), (operator.neg, 1)):
    pset.addPrimitive(function, arity)
pset.renameArguments(ARG0="x")
creator.create("FitnessMin", base.Fitness, weights=(-1.0,))
creator.create("Individual", gp.PrimitiveTree, fitness=creator.FitnessMin)


@task
def evaluate(individual: Any) -> tuple[float]:
    """Mean square of the error."""
    formula = gp.compile(individual, pset)
    return (sum((formula(x) - x**4 - x**3 - x**2 - x) ** 2 for x in POINTS) / len(POINTS),)


def evolve(map_: Any) -> list[float]:
    """The best errors after some generations."""
    random.seed(318)
    toolbox = base.Toolbox()
    toolbox.register("expr", gp.genHalfAndHalf, pset=pset, min_=1, max_=2)
    toolbox.register("individual", tools.initIterate, creator.Individual, toolbox.expr)
    toolbox.register("population", tools.initRepeat, list, toolbox.individual)
    toolbox.register("evaluate", evaluate)
    toolbox.register("select", tools.selTournament, tournsize=3)
    toolbox.register("mate", gp.cxOnePoint)
    toolbox.register("expr_mut", gp.genFull, min_=0, max_=2)
    toolbox.register("mutate", gp.mutUniform, expr=toolbox.expr_mut, pset=pset)
    toolbox.decorate("mate", gp.staticLimit(key=operator.attrgetter("height"), max_value=17))
    toolbox.decorate("mutate", gp.staticLimit(key=operator.attrgetter("height"), max_value=17))
    toolbox.register("map", map_)
    best = tools.HallOfFame(3)
    algorithms.eaSimple(toolbox.population(n=300), toolbox, 0.5, 0.1, 20, halloffame=best, verbose=False)
    return [one.fitness.values[0] for one in best]


def before(comm: Any) -> Any:
    """With mpi4py's executor."""
    with MPICommExecutor(comm, root=0) as pool:
        if pool is not None:
            return evolve(pool.map)  # type: ignore[attr-defined]
    return None


def after(comm: Any) -> Any:
    """With lb_mpi."""
    with lb_mpi.Pool(comm, root=0) as pool:
        if pool is not None:
            return evolve(pool.map)
    return None


if __name__ == "__main__":
    main(before, after)
