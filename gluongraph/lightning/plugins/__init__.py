"""Lightning's plugins, of which none exist here: importing one says which argument of the Trainer does the same."""

from __future__ import annotations

from gluongraph.lightning.absent import says_what_instead

_PRECISIONS = {
    "DoublePrecision": '"64-true"',
    "HalfPrecision": '"bf16-true" or "16-true"',
    "MixedPrecision": '"bf16-mixed" or "16-mixed"',
    **dict.fromkeys(("DeepSpeedPrecision", "FSDPPrecision", "Precision"), '"bf16-mixed", "16-mixed", ...'),
}
_FORMAT = "checkpoints have one format, and are written when they are whole (docs/lightning.md)"

__getattr__ = says_what_instead(
    __name__,
    {
        **{name: f"Trainer(precision=...) with {text}" for name, text in _PRECISIONS.items()},
        **dict.fromkeys(("AsyncCheckpointIO", "CheckpointIO", "TorchCheckpointIO"), _FORMAT),
        **dict.fromkeys(("LayerSync", "TorchSyncBatchNorm"), "Gluon's SyncBatchNorm layers"),
        "BitsandbytesPrecision": "there are no such types",
        "TransformerEnginePrecision": "there are no such types",
    },
)
