"""What is not as in Lightning, and why. docs/lightning.md tells the same in its table of differences."""

from __future__ import annotations

from parity_table import Difference

TRAINED = ("callback_metrics", "logged_metrics", "weights", "rows")  # what another update changes

DIFFERENCES: tuple[Difference, ...] = (
    *(
        Difference(name, TRAINED, "the last window of an epoch is divided by the number of its batches")
        for name in ("accumulated_with_a_remainder", "accumulated_over_more_than_an_epoch")
    ),
    Difference(
        "step_that_gives_nothing",
        ("callback_metrics", "logged_metrics", "rows"),
        "whether training_step gives None is decided when it is traced; what it logs is left out with it",
    ),
    Difference(
        "resumed_between_epochs", ("events",), "no sanity check after a resume, which has been made before the training"
    ),
    *(
        Difference(name, ("callback_metrics", "logged_metrics"), "metrics are part of a checkpoint")
        for name in ("resumed_when_nothing_is_left", "resumed_with_steps")
    ),
    Difference("resumed_when_nothing_is_left", ("events",), "no sanity check after a resume"),
    Difference(
        "resumed_inside_an_epoch",
        (*TRAINED, "exact"),
        "a resumed run goes on with the next batch of the epoch, to the bit",
    ),
    *(
        Difference(name, ("events",), "a checkpoint has what the module's on_train_batch_end did, to go on from")
        for name in ("checkpoint_each_fourth_step", "checkpoint_of_the_best_by_steps", "checkpoint_steps_accumulated")
    ),
    Difference("exception_at_a_batch", ("logged_metrics",), "metrics are read when somebody looks"),
    Difference(
        "arguments_refused", ("accumulate", "log"), "numbers that mean nothing are refused: windows of 0, half a step"
    ),
    Difference(
        "fits_refused", ("loaders one after another",), 'CombinedLoader(mode="sequential") is read in training as well'
    ),
    Difference("predict_a_list_of_batches", ("returned",), "a list of arrays is one loader of batches"),
)
