"""YAML configurations of the recipes, in one folder per recipe."""
