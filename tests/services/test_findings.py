"""What recovery found: of a store that was closed cleanly it is nothing."""

from dataclasses import asdict

from timerstore.services.opening.recovery_findings import RecoveryFindings


def test_nothing_was_found_at_first() -> None:
    one, other = RecoveryFindings(), RecoveryFindings()
    assert one.clean and not any(v for k, v in asdict(one).items() if k != "clean")
    one.rebuilt.append("queues")
    assert other.rebuilt == []
