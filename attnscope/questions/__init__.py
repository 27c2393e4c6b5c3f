"""One file per question: its records, observers, analysis and views."""
