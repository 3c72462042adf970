from hypothesis import settings

# The same examples on every run, and no deadline: the first call into torch is slow.
settings.register_profile("ddc", derandomize=True, deadline=None)
settings.load_profile("ddc")
