"""What rhinoctl knows of a cluster on this machine: one file in the cluster's directory."""
