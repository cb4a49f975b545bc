"""Makes Dramatiq's tests a package: its sources as released lack this file, and those beside it."""
