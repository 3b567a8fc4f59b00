"""Shared by tests and by the simulated nodes: hardware profiles and the renderers of the tools' formats."""
