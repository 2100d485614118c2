"""Rewards as a service: the server, its protocol, and the client, which replaces a reward.

Names are imported at their first use (the list is in `__init__.pyi`): a client does not load the
server.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
