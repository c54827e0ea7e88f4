"""How machines and properties are explored: the same examples in every ordinary run, others in each soak round.

A failure prints the steps that lead to it, and the test's own name is the command that shows it again.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def _settings(examples: int, steps: int = 1) -> settings:
    # Neither a clock nor a database decides what is tried: a loaded machine sees what an idle one does.
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def explore(machine: type[RuleBasedStateMachine], round_: int, *, examples: int, steps: int) -> None:
    """Plays ``machine``: each round other histories, the same ones each time."""
    seeded = seed(round_)(type(machine.__name__, (machine,), {}))
    run_state_machine_as_test(seeded, settings=_settings(examples, steps))


def check(holds: Callable[[], None], round_: int, *, examples: int) -> None:
    """Checks a ``@given`` property: each round other examples, the same ones each time."""
    _settings(examples)(seed(round_)(holds))()
