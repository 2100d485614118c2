"""YAML configurations of the recipes, in one folder per recipe."""

# Imported from the repository root under its folder's name, every class would exist twice.
if __name__ == "configs":
    raise ImportError("there is no package 'configs': import ctrlreward.configs instead")
