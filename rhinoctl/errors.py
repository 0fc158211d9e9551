"""One tree of errors. A leaf says what is wrong, what to type next, and how the command ends.

Every leaf has a stable ``code``, which is a heading in ``docs/operations/errors.md``, and an exit
code from the one table of the design (section 13). Text is made in `rhinoctl.render.errors` only.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType


class Exit(IntEnum):
    """How a command ends; the same table for all verbs."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    REFUSED = 3
    ABORTED = 4
    NEEDS_REPAIR = 5
    BUSY = 6
    DEGRADED = 7
    PARTIAL = 8
    HAS_CHANGES = 10


class RhinoError(Exception):
    """The root: a message for a person, the remedy, and how a command ends on it. `details` are
    what a program may want apart from the message, as JSON has it."""

    code = "unexpected"
    exit_code = Exit.UNEXPECTED
    details: Mapping[str, object] = MappingProxyType({})

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        """For logs and for Spark, which show an exception as one text."""
        return f"{self.message} [{self.code}; try: {self.remedy}]"


class UsageError(RhinoError):
    """An argument that no state of the cluster could make right."""

    code = "usage"
    exit_code = Exit.USAGE


class Refused(RhinoError):
    """Refused before anything was touched."""

    code = "refused"
    exit_code = Exit.REFUSED


class UnknownJob(Refused):
    code = "unknown-job"


class UnknownInstance(Refused):
    code = "unknown-instance"


class UnknownWorker(Refused):
    code = "unknown-worker"


class NoCopy(Refused):
    """Nobody else has a whole copy of some state: to go on would lose it."""

    code = "no-copy"


class HealthyTarget(Refused):
    """A failover of what answers: there are gentler ways."""

    code = "healthy-target"


class UnknownVnode(Refused):
    code = "unknown-vnode"


class UnknownOperation(Refused):
    code = "unknown-operation"


class UnknownHost(Refused):
    code = "unknown-host"


class UnknownRun(Refused):
    """No command on hosts has this name, on this machine."""

    code = "unknown-run"


class CannotRevert(Refused):
    """An operation whose moves cannot be taken back; says why."""

    code = "cannot-revert"


class CannotPause(Refused):
    """An operation that cannot stay where it is, or that is not paused."""

    code = "cannot-pause"


class CannotRepairOffsets(Refused):
    """Spark's offset log and what was decided differ in a way that a repair would make worse."""

    code = "cannot-repair-offsets"


class NoSuchWorkers(Refused):
    """The inventory has not the workers that the request needs."""

    code = "not-enough-workers"


class ParallelismOutOfRange(UsageError):
    """``--instances`` below one or above the number of vnodes."""

    code = "parallelism-out-of-range"


class NoInventory(UsageError):
    """The inventory's file is not there, or not readable."""

    code = "no-inventory"


class InvalidInventory(UsageError):
    """The inventory has mistakes; all are named, with their lines, and a list in `details`."""

    code = "invalid-inventory"


class InventoryExists(Refused):
    """`init` would write over a file."""

    code = "inventory-exists"


class AlreadyInInventory(Refused):
    """A worker that is to be added is there; names it."""

    code = "already-in-inventory"


class CannotEditInventory(Refused):
    """An inventory that is not written in a way that can be edited; says what to do by hand."""

    code = "cannot-edit-inventory"


class WorkerInUse(Refused):
    """A worker that is to be removed has state that counts, or runs instances; says which."""

    code = "worker-in-use"


class CannotUpgrade(Refused):
    """Some host cannot be upgraded while jobs run, or the cluster does not become well."""

    code = "cannot-upgrade"


class UnsupportedSpark(Refused):
    """Spark Connect, a real-time or continuous trigger, async progress, or Spark < 4.2."""

    code = "unsupported-spark"


class MissingJava(Refused):
    code = "missing-java"


class UnsupportedOperator(Refused):
    """A column, type, aggregate or value that an operator cannot hold; names the column."""

    code = "unsupported-operator"


class MissingColumn(UnsupportedOperator):
    code = "missing-column"


class IdentityChanged(Refused):
    """Query id, offsets, operator or key columns are not those that were decided (invariant 11)."""

    code = "identity-changed"


class SecondSession(Refused):
    """Another run of the query holds the job's session (invariant 10)."""

    code = "second-session"


class Fenced(Refused):
    """A later session, generation, epoch or incarnation has been persisted (invariant 1)."""

    code = "fenced"


class UnwritableDirectory(Refused):
    code = "unwritable-directory"


class CeilingExceeded(Refused):
    """A worker has not the open files or the memory for what is asked of it."""

    code = "ceiling-exceeded"


class LinksRefused(Refused):
    """A worker's file system makes no hard links, and the cluster was told to need them."""

    code = "links-refused"


class DiskFull(Refused):
    """A replica disk has no room for the little that is needed, or not for what is asked for."""

    code = "disk-full"


class UnknownDisk(Refused):
    code = "unknown-disk"


class DiskRefused(Refused):
    """A directory that cannot become a worker's disk, or a disk that cannot leave it; says why."""

    code = "disk-refused"


class PortInUse(Refused):
    code = "port-in-use"


class AlreadyRunning(Refused):
    """A second cluster, controller or agent over the same directory."""

    code = "already-running"


class NotRunning(Refused):
    """No controller answers, or the local cluster is down."""

    code = "not-running"


class ForeignManifest(Refused):
    """A manifest, log or directory of another cluster or job."""

    code = "foreign-manifest"


class Unauthenticated(Refused):
    code = "unauthenticated"


class RoleTooLow(Refused):
    """The token is the cluster's, but its role may not do this; the message names who may."""

    code = "role-too-low"


class CertificateRefused(Refused):
    """TLS failed: a certificate of another cluster, one that has expired, another host's, none."""

    code = "certificate-refused"


class IncompatibleVersion(Refused):
    """Two processes are more than one version of the protocol apart; names both versions."""

    code = "incompatible-version"


class EnvironmentNotBuilt(Refused):
    """What is put on hosts cannot be made from this installation; says what is not whole."""

    code = "environment-not-built"


class MissingWheel(EnvironmentNotBuilt):
    """A package is not to be had for a host's platform; names it."""

    code = "missing-wheel"


class OperationAborted(RhinoError):
    """The operation ended at the old layout."""

    code = "operation-aborted"
    exit_code = Exit.ABORTED


class NeedsRepair(RhinoError):
    code = "needs-repair"
    exit_code = Exit.NEEDS_REPAIR


class CorruptFile(NeedsRepair):
    """Bytes that do not match their checksum, or a file that cannot be read back (invariant 9)."""

    code = "corrupt-file"


class StoreRefused(NeedsRepair):
    """The agents know of changes that the controller's store lacks: it is lost, or an old copy."""

    code = "store-refused"


class StoreGone(NeedsRepair):
    """The files of the controller's store were moved, removed or replaced while it ran."""

    code = "store-gone"


class Busy(RhinoError):
    """A stale plan, or another operation is running; the message names it."""

    code = "busy"
    exit_code = Exit.BUSY


class Degraded(RhinoError):
    code = "degraded"
    exit_code = Exit.DEGRADED


class WorkerUnreachable(Degraded):
    """A worker of the epoch did not answer within its deadline; nothing was lost."""

    code = "worker-unreachable"


class DeadlineExceeded(Degraded):
    """A wait ended at its deadline; the outcome is shown by ``rhinoctl status``."""

    code = "deadline-exceeded"


class PoisonBatch(NeedsRepair):
    """An operator raised while it applied a decided batch; names batch and vnode."""

    code = "poison-batch"


class PartialFailure(RhinoError):
    """Some workers failed; each is named."""

    code = "partial-failure"
    exit_code = Exit.PARTIAL


class HostError(RhinoError):
    """Something about one host; others of the same command may be done."""

    code = "host-error"
    exit_code = Exit.PARTIAL


class HostUnreachable(HostError):
    """No connection: no address, no answer, or refused."""

    code = "host-unreachable"


class HostKeyUnknown(HostError):
    """A host that was never met, and that nobody has said to trust."""

    code = "host-key-unknown"


class HostKeyChanged(HostError):
    """A host that shows another key than the one it is known by."""

    code = "host-key-changed"


class KnownHostsUnusable(HostError):
    """The known hosts cannot be read or written, or have a damaged line."""

    code = "known-hosts-unusable"


class LoginRefused(HostError):
    code = "login-refused"


class JumpFailed(HostError):
    """The host on the way is what is wrong."""

    code = "jump-failed"


class LoginShellEnded(HostError):
    """The account's login shell does not run commands."""

    code = "login-shell-ended"


class SudoRefused(HostError):
    code = "sudo-refused"


class UnsupportedHost(HostError):
    """Nothing that we could put there would run."""

    code = "unsupported-host"


class ServiceFailed(HostError):
    """A service that was started does not stay up; the message has its last words."""

    code = "service-failed"


class CommandFailed(HostError):
    """A command on a host that had to succeed has not."""

    code = "command-failed"


class CommandTimeout(HostError):
    """A command on a host was ended at its deadline."""

    code = "command-timeout"


class HostLost(HostError):
    """The connection ended in the middle; what was asked may have been done."""

    code = "host-lost"


class HostUnfit(HostError):
    """What `check` finds would keep the cluster's processes from working there."""

    code = "host-unfit"


class DiskNotMounted(HostError):
    """A directory for state that was there is gone, and is not made anew."""

    code = "disk-not-mounted"


class NotTried(HostError):
    """A host that was left as it is, since what it needs is not there."""

    code = "not-tried"


class ResultMismatch(RhinoError):
    """The demo's result differs from the oracle's."""

    code = "result-mismatch"


def leaves(root: type[RhinoError] = RhinoError) -> list[type[RhinoError]]:
    """All error classes below (and with) `root`, in definition order."""
    found = [root]
    for child in root.__subclasses__():
        found += leaves(child)
    return found


_CLASSES = {kind.code: kind for kind in leaves()}


def error_of(code: str, message: str, *, remedy: str) -> RhinoError:
    """What another process raised and sent as text; of the root's class if its code is not ours."""
    return _CLASSES.get(code, RhinoError)(message, remedy=remedy)
