"""`run`: start a program on all hosts, watch it, and start it again; and what all commands share.

    start.py       the options; for each start: reach the hosts, start mpiexec, wait for its end
      mpiexec.py       its command line, for MPICH and Open MPI
      watch.py         the connections to the hosts: what each has, who is alive, what ranks report
      hangs.py         (pure) states of ranks -> which hang
      restarting.py    (pure) how a run has ended -> whether it starts again, on which hosts
    host.py        on each host: passes on what its ranks report; ends all that is left of the run (processes.py)
      rank.py          around each rank: reports its start and its end
      site/            in each rank: guards the start of MPI
    lines.py       what rank.py tells host.py, and host.py tells watch.py

A rank itself reports in a page of memory (`lb_mpi.signs`), which host.py reads.  These files need Python alone: they run
on hosts and with interpreters on which nothing has been checked yet.  So they read /proc, without psutil.

Other commands use command.py (a `Command`, and how it is executed), options.py, hosts.py (hostfiles) and processes.py.
"""
