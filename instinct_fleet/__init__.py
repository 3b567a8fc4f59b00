"""instinct-fleet: topology, placement, checks and load tests for AMD Instinct nodes that serve vLLM.

The package is pure typed Python. It does not import Ansible, and it does no I/O outside ``cli`` and ``load``.
"""

__version__ = "0.1.0"
