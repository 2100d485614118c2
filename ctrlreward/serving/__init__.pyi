from .application import create_app as create_app
from .remote_reward import RemoteReward as RemoteReward
