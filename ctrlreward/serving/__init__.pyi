from .application import create_app as create_app
from .description import describe as describe
from .description import differences as differences
from .remote_reward import RemoteReward as RemoteReward
from .server_connection import OtherReward as OtherReward
from .server_connection import ServerError as ServerError
from .server_connection import ServerLost as ServerLost
