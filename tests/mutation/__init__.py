"""Random mutations of the protocol cores, and what notices them: ``python -m tests.mutation --count 60 --seed 1``.

The mutants of :mod:`tests.simulation.mutants` leave out rules that somebody thought of. These mutations need nobody's
thought: an operator, a constant, a condition or a statement of a core is changed by chance. One that no test and no
simulated history notices is a check that is missing, or code that changes nothing.
"""
