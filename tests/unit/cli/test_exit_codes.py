import pytest

from cedana_sched.cli.cluster_reader import MissingPermissionError
from cedana_sched.cli.errors import DoctorError, JobFailedError, PermissionRefusedError, WaitTimedOutError
from cedana_sched.cli.exit_codes import _BY_NAME, MEANINGS, ExitCode, exit_code_of
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.local.client import EngineRefusedError, EngineUnreachableError
from cedana_sched.model import errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("group", "x", "is unknown", remedy="use bio"), 2),
        (errors.NotFoundError("job", "x", "does not exist", remedy="see ps"), 3),
        (errors.RefusedError("job", "x", "does not run", remedy="wait"), 4),
        (errors.IncompatibleError("other architecture"), 6),
        (errors.StoreUnavailableError("unreachable"), 7),
        (errors.StoreDeniedError("wrong keys"), 4),
        (errors.IntegrityError("damaged"), 1),
        (errors.DumpError("cannot be dumped"), 1),
        (EngineUnreachableError("no engine"), 7),
        (EngineRefusedError("not now"), 4),
        (WaitTimedOutError("too long"), 5),
        (PermissionRefusedError("not yours"), 4),
        (JobFailedError("exit code 3"), 1),
        (DoctorError("no CRIU"), 1),
    ],
)
def test_every_error_has_its_documented_code(error: errors.CedanaSchedError, code: int) -> None:
    assert exit_code_of(error) == code


def test_a_special_kind_of_a_known_error_keeps_its_code() -> None:
    class EngineStartingError(EngineRefusedError): ...

    assert exit_code_of(EngineStartingError("starting")) is ExitCode.REFUSED


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)


def test_names_that_stand_for_lazily_imported_errors_exist() -> None:
    known = {
        ApiUnavailableError,
        EngineRefusedError,
        EngineUnreachableError,
        MissingPermissionError,
        PermissionRefusedError,
        WaitTimedOutError,
    }
    assert set(_BY_NAME) == {kind.__name__ for kind in known}
