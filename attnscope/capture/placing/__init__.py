"""Which kind and layer a call has, and which layers are without attention."""
