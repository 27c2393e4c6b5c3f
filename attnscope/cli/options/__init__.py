"""Options that several commands share: a frozen dataclass a group, which ``command`` expands."""
