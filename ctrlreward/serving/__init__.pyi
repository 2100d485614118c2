from .application import create_app as create_app
from .remote_reward import OtherReward as OtherReward
from .remote_reward import RemoteReward as RemoteReward
from .remote_reward import ServerError as ServerError
from .remote_reward import ServerLost as ServerLost
