"""How a training went, as a picture: loss by step and dev F1 by epoch, in one SVG file without scripts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model.training.history import History

# Told apart with red-green blindness, and in grey.
_BLUE: Final = "#0b62a4"
_ORANGE: Final = "#d9730d"
_INK: Final = "#1c2733"
_LINES: Final = ("", "6 3", "2 3", "8 3 2 3")
_WIDTH: Final = 760
_HEIGHT: Final = 300
_TOP: Final = 34
_BOTTOM: Final = 44
_SIDE: Final = 52
_POINTS: Final = 100


def learning_curves(history: History) -> str:
    """Draw a run.

    Args:
        history: With one epoch at least.

    Returns:
        An SVG document. The loss is the mean over stretches of steps, a hundred at most; F1 is that of each
        development set, and a circle stands on the epoch whose weights were kept.
    """
    steps = len(history.losses)
    stretch = -(-steps // _POINTS)
    losses = [
        (min(first + stretch, steps) / steps, _mean(history.losses[first : first + stretch]))
        for first in range(0, steps, stretch)
    ]
    top = max(loss for _, loss in losses) or 1.0
    parts = [_axes(top, steps, len(history.epochs))]
    parts.append(_line([(x, loss / top) for x, loss in losses], _BLUE, "", "loss"))
    epochs = len(history.epochs)
    for rank, name in enumerate(history.epochs[0].dev):
        points = [(report.epoch / epochs, report.dev[name].f1) for report in history.epochs]
        parts.append(_line(points, _ORANGE, _LINES[rank % len(_LINES)], f"F1 on {name}"))
        parts += [
            _dot(x, f1, f"{name}, epoch {report.epoch}", kept=report.epoch == history.best.epoch)
            for (x, f1), report in zip(points, history.epochs, strict=True)
        ]
        style = {"": "line", "6 3": "dashed", "2 3": "dotted"}.get(_LINES[rank % len(_LINES)], "dash-dot")
        parts.append(_text(_SIDE + 70 + 230 * rank, 20, f"F1 on {name} ({style})", "start", _ORANGE))
    parts.append(_text(_SIDE, 20, "loss", "start", _BLUE))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Learning curves" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _dot(x: float, f1: float, what: str, *, kept: bool) -> str:
    radius, opacity = (6, 0.6) if kept else (2.5, 1)
    return (
        f'<circle cx="{_x(x):.1f}" cy="{_y(f1):.1f}" r="{radius}" fill="{_ORANGE}" fill-opacity="{opacity}">'
        f"<title>{escape(what)}: F1 {100 * f1:.1f}</title></circle>"
    )


def _axes(top: float, steps: int, epochs: int) -> str:
    parts = [
        f'<line x1="{_x(0)}" x2="{_x(1)}" y1="{_y(share):.1f}" y2="{_y(share):.1f}" stroke="#e3e8ec"/>'
        + _text(_SIDE - 6, _y(share) + 4, f"{share * top:.2g}", "end", _BLUE)
        + _text(_WIDTH - _SIDE + 6, _y(share) + 4, f"{100 * share:.0f}", "start", _ORANGE)
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    shown = -(-epochs // 10)
    parts += [
        _text(_x(epoch / epochs), _HEIGHT - _BOTTOM + 17, str(epoch), "middle", _INK)
        for epoch in range(shown, epochs + 1, shown)
    ]
    parts.append(_text(_x(0.5), _HEIGHT - 8, f"epoch ({steps} steps in all)", "middle", _INK))
    return "".join(parts)


def _line(points: Sequence[tuple[float, float]], colour: str, dash: str, told: str) -> str:
    drawn = " ".join(f"{_x(x):.1f},{_y(y):.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.8"{dashed}>'
        f"<title>{escape(told)}</title></polyline>"
    )


def _text(x: float, y: float, text: str, anchor: str, colour: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _x(share: float) -> float:
    return _SIDE + share * (_WIDTH - 2 * _SIDE)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
