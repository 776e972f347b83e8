"""Scores as text: every line has the protocol by which its score was measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .windows import Windows


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How windows were cut and compared; `line` is beside every score.

    Attributes:
        data: name of the data and of its split.
        observed: steps T.
        predicted: steps P.
        step_seconds: time of a step.
        unit: of distances.
        windows: number of windows.
        stride: steps from one window to the next.
        with_company: only scenes with two or more agents (Social-GAN's rule).
        allow_missing: windows may miss steps, which count nothing.
        seed: of the training run, where known.
    """

    data: str
    observed: int
    predicted: int
    step_seconds: float
    unit: str
    windows: int
    stride: int = 1
    with_company: bool = False
    allow_missing: bool = False
    seed: str = ""

    @classmethod
    def of(cls, windows: "Windows", data: str, **known: Any) -> "Protocol":
        """The protocol of windows of these data; `known` are further attributes."""
        return cls(
            data=data,
            observed=windows.observed,
            predicted=windows.predicted,
            step_seconds=windows.table.step_seconds,
            unit=windows.table.unit,
            windows=len(windows),
            **known,
        )

    def line(self, modes: int = 1, *, single: str = "top-scored track") -> str:
        """The protocol of a score over so many modes; `single` says which one, if it is one."""
        cut = "per scene of two or more" if self.with_company else "per person"
        masked = ", missing steps masked" if self.allow_missing else ""
        parts = [
            self.data,
            f"{self.observed} -> {self.predicted} steps of {self.step_seconds:g} s",
            f"{cut}, stride {self.stride}, {self.windows:,} windows{masked}",
            f"best of {modes} per person, ADE and FDE separately" if modes > 1 else single,
        ]
        return " | ".join([*parts, f"seed {self.seed}"] if self.seed else parts)


@dataclass(frozen=True)
class TrackScores:
    """Scores with their protocol.

    Attributes:
        values: by name, such as `minADE20`.
        protocol: how they were measured.
    """

    values: Mapping[str, float]
    protocol: Protocol

    def __str__(self) -> str:
        return "\n".join(self._line(name, value) for name, value in self.values.items())

    def _line(self, name: str, value: float) -> str:
        digits = "".join(filter(str.isdigit, name))
        modes = int(digits) if digits else self._modes if name in _OVER_ALL else 1
        if name in _SHARES:
            shown = f"{100 * value:.2f} %"
        else:
            shown = f"{value:.3f} {'nats' if name in _NATS else self.protocol.unit}"
        if name.startswith("single_"):
            return f"{name} {shown} | {self.protocol.line(single=_SINGLE)}"
        if name.startswith(("minJ", "joint_")):
            best = f"best of {modes}" if name.startswith("minJ") else "all"
            return f"{name} {shown} | {self.protocol.line(single=f'{best} {_TOGETHER}')}"
        return f"{name} {shown} | {self.protocol.line(modes)}"

    @property
    def _modes(self) -> int:
        return max(int(name[6:]) for name in self.values if name.startswith("minADE"))


_SINGLE = "track of the smallest expected distance"
_SHARES = ("miss_rate", "off_speed_share", "collision_share", "joint_collision_share")
_NATS = ("kde_nll", "density_nll")
_OVER_ALL = ("miss_rate", "brier_minFDE", *_NATS)
_TOGETHER = "of futures of scenes of two or more people"
