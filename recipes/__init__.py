"""Runnable training jobs; `ctrlreward.configs` holds their configurations."""

# Imported from the repository root under its folder's name, every class would exist twice.
if __name__ == "recipes":
    raise ImportError("there is no package 'recipes': import ctrlreward.recipes instead")
