"""Calls that users of other packages type, on a pool of all ranks; each line says whether its result is that of one process.

    mpiexec -n 3 python -m lb_mpi pool --as multiprocessing packages.py NAME...
"""

import sys

import numpy as np

import lb_mpi


class Serial:
    """A pool of this process."""

    map = staticmethod(lambda function, items: [*map(function, items)])


def square(x):
    return float(((np.asarray(x) - 1.0) ** 2).sum())


def log_likelihood(x):
    return -0.5 * float(x @ x)


def cube(u):
    return 10.0 * u - 5.0


def emcee(pool):
    import emcee

    def found(pool):
        sampler = emcee.EnsembleSampler(8, 2, log_likelihood, pool=pool)
        sampler.random_state = np.random.RandomState(7).get_state()
        sampler.run_mcmc(np.random.default_rng(2).normal(size=(8, 2)), 10)
        return sampler.get_chain()

    return np.array_equal(found(pool), found(None))


def scipy(pool):
    from scipy.optimize import differential_evolution

    def found(**parallel):
        return differential_evolution(square, [(-5, 5)], updating="deferred", rng=1, maxiter=5, **parallel).x

    return np.array_equal(found(workers=pool.map), found(workers=map))


def simulated(parameters):
    return {"y": parameters["x"] + np.random.default_rng().normal(0.0, 0.05)}


def pyabc(pool):
    import pyabc

    def found(sampler):
        prior = pyabc.Distribution(x=pyabc.RV("uniform", 0, 1))
        abc = pyabc.ABCSMC(simulated, prior, pyabc.PNormDistance(2), population_size=20, sampler=sampler)
        abc.new("sqlite://", {"y": 0.5})
        accepted, weights = abc.run(max_nr_populations=3).get_distribution()
        return float(weights @ accepted["x"])

    means = [found(pyabc.sampler.MappingSampler(pool.map))]
    with lb_mpi.Executor() as executor:
        means.append(found(pyabc.sampler.ConcurrentFutureSampler(executor, 8)))
    return all(abs(mean - 0.5) < 0.2 for mean in means)


class Fit:
    def __init__(self, pool):
        self.pool, self.scale = pool, 3

    def cost(self, x):
        return self.scale * x

    def costs(self, points):
        return list(self.pool.map(self.cost, points))


def own_class(pool):
    return Fit(pool).costs([1, 2]) == [3, 6]


def dynesty(pool):
    import dynesty

    def found(**parallel):
        sampler = dynesty.NestedSampler(log_likelihood, cube, 2, nlive=50, rstate=np.random.default_rng(1), **parallel)
        sampler.run_nested(maxiter=150, print_progress=False)
        return sampler.results.logl

    return np.array_equal(found(pool=pool, queue_size=4), found(pool=Serial(), queue_size=4))


def nevergrad(pool):
    import nevergrad

    with lb_mpi.Executor() as executor:
        optimizer = nevergrad.optimizers.OnePlusOne(parametrization=2, budget=40, num_workers=4)
        best = optimizer.minimize(square, executor=executor, batch_mode=True).value
    return square(best) <= square([0.0, 0.0])


def rank(k):
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank + 0 * sum(range(20_000))


def multiprocess(pool):
    import multiprocess

    with multiprocess.Pool(2) as its_pool:
        return len(set(its_pool.map(lambda k: rank(k), range(300)))) > 1


def pathos(pool):
    import pathos

    return len(set(pathos.pools.ProcessPool(2).map(lambda k: rank(k), range(300)))) > 1


def tqdm(pool):
    from tqdm.contrib.concurrent import process_map

    return process_map(abs, range(-40, 0), chunksize=1, disable=True) == [*range(40, 0, -1)]


def n_threads(_):
    import threadpoolctl

    return max(library["num_threads"] for library in threadpoolctl.threadpool_info())


def threadpoolctl(pool):
    import threadpoolctl

    with lb_mpi.Pool(initializer=threadpoolctl.threadpool_limits, initargs=(1,)) as its_pool:
        return set(its_pool.map(n_threads, range(30))) == {1}


if __name__ == "__main__":
    with lb_mpi.Pool() as pool:
        for name in sys.argv[1:]:
            print(name, globals()[name](pool))
