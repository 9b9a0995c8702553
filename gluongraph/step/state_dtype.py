"""The dtype in which a trainer stores its optimizer's states."""

from __future__ import annotations

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.trainer import Trainer
from gluongraph.optimizer.compact import form_of


def hold_states(trainer: Trainer | None, form: str) -> None:
    """Store float32 states of the trainer's optimizer in this form, in every step and eager update from now on.

    States that are there are converted.

    Raises:
        ValueError: there is no such form.
        MXNetError: there is no trainer, its optimizer has no formula, or a gradient is kept by rows.
    """
    form_of(form)
    if trainer is None:
        raise MXNetError(with_user_location("optimizer_state without a trainer", help="mx.compile(net, loss, trainer)"))
    if not trainer.optimizer.has_formula:
        message = f"optimizer_state={form!r}: {type(trainer.optimizer).__name__} updates its states in Python"
        raise MXNetError(with_user_location(message, help="state its formula in rule(w, g, state, s)"))
    if by_rows := [p.name for p in trainer.params if p.grad_stype == "row_sparse"]:
        message = f"optimizer_state={form!r}: of {', '.join(by_rows)} only rows are updated"
        raise MXNetError(with_user_location(message, help="leave grad_stype='row_sparse' out"))
    trainer.optimizer.state_form = form
    trainer.replaced += 1
    for name, states in trainer.states.items():
        wanted = trainer.optimizer_of(name).state_types(trainer.replica(name).type)
        trainer.states[name] = {k: a if a.type == wanted[k] else a.astype(wanted[k].dtype) for k, a in states.items()}
