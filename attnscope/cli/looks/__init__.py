"""What an option makes a command look at instead: one file a look."""
