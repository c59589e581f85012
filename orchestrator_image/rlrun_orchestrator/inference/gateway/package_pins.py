"""Packages with which the run's environments started, pinned for later starts of their pods.

The operator records them in the run's status and passes them to each later process of the run. A package without a
record is recorded when all environments are ready, so that a broken package can be corrected until then.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from rlrun.api.base.names import package_name
from rlrun.api.run_status import EnvironmentPackage
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem


class PackageRef(NamedTuple):
    """Package of an entry in env or eval.env. If `version` is None, the entry uses the newest version."""

    owner: str
    name: str
    version: str | None

    @classmethod
    def of(cls, package_id: str, version: str | None) -> "PackageRef":
        """Return the reference for an id `owner/name`, with a normalized name."""
        owner, _, name = package_id.partition("/")
        return cls(owner, package_name(name), version)

    @property
    def id(self) -> str:
        """Id as `owner/name`."""
        return f"{self.owner}/{self.name}"


class PackageChanged(Exception):
    """Error for a package that differs from the package with which the run started, or from its digest in the spec."""

    def __init__(self, message: str, reason: Reason = Reason.ENVIRONMENT_CHANGED) -> None:
        super().__init__(message)
        self.problem = Problem(reason=reason, message=message)


class PackagePins:
    """Recorded packages of the run, and packages that were delivered before `confirm` and are not recorded yet.

    `digests` has the digests that entries of env and eval.env specify, by reference.
    """

    def __init__(
        self,
        recorded: Iterable[EnvironmentPackage] = (),
        digests: Mapping[PackageRef, Collection[str]] | None = None,
    ) -> None:
        self._digests = digests or {}
        self._recorded = {PackageRef.of(p.id, p.requested_version): p for p in recorded}
        self._delivered: dict[PackageRef, list[EnvironmentPackage]] = defaultdict(list)
        self._is_confirmed = False

    @property
    def packages(self) -> list[EnvironmentPackage]:
        """Recorded packages."""
        return list(self._recorded.values())

    def of(self, ref: PackageRef) -> EnvironmentPackage | None:
        """Return the recorded package of a reference, or None."""
        return self._recorded.get(ref)

    def add(self, ref: PackageRef, package: EnvironmentPackage) -> None:
        """Add a package that is about to be delivered. Raises PackageChanged if it differs from the recorded package or
        from a digest in the spec.
        """
        for digest in self._digests.get(ref, ()):
            if digest != package.digest:
                raise PackageChanged(
                    f"environment package {ref.id} {package.version} has the digest {package.digest}, but its entry "
                    f"in env or eval.env specifies {digest}; start a new run with the correct digest",
                    Reason.ENVIRONMENT_DIGEST_MISMATCH,
                )
        recorded = self.of(ref)
        if recorded is None and self._is_confirmed:
            self._recorded[ref] = package
        elif recorded is None:
            self._delivered[ref] = [p for p in self._delivered[ref] if p != package] + [package]
        elif recorded != package:
            raise PackageChanged(
                f"environment package {ref.id} {recorded.version} has different files than at the start of this run "
                f"({package.digest} instead of {recorded.digest}); start a new run, with checkpointId to continue "
                "from the newest checkpoint"
            )

    def confirm(self, users: Mapping[PackageRef, int]) -> list[PackageRef]:
        """Record the environments' packages, now that all pods are ready. Returns the references of packages that are
        still not recorded, because no pod has requested them.

        `users` has the number of pods by reference. Raises PackageChanged if pods may have different packages.
        """
        for ref, number in users.items():
            delivered = self._delivered[ref]
            if self.of(ref) is not None or not delivered:
                continue
            if len(delivered) > 1 and number > 1:
                raise PackageChanged(
                    f"environment package {ref.id} changed while the {number} pods that use it were starting "
                    f"({', '.join(f'{p.version} {p.digest}' for p in delivered)}): start a new run"
                )
            self._recorded[ref] = delivered[-1]
        self._is_confirmed = True
        return [ref for ref in users if self.of(ref) is None]
