"""What Millstream's benchmarks compare it with: other servers, clients and tools.

The benchmarks are in :mod:`millstream.bench`. They load the module of this package that has the benchmark's name
(:func:`millstream.bench.peers.load_peers`). Nothing here is part of the installed package.
"""
