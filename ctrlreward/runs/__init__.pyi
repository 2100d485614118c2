from .folder import StoredRun as StoredRun
from .folder import read_stored_run as read_stored_run
from .logs import Log as Log
from .logs import read_log as read_log
