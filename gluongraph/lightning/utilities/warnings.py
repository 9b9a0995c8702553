"""Categories of warnings, under the name that Lightning's scripts import them by."""


class PossibleUserWarning(UserWarning):
    """A warning that may be none: for `warnings.filterwarnings("ignore", category=PossibleUserWarning)`."""


__all__ = ["PossibleUserWarning"]
