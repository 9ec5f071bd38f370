"""Pictures in scikit-learn's manner, one file each: `from_...` takes what a user has, `plot` draws, `ax_` and `figure_` stay."""
