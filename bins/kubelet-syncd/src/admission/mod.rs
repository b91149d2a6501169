//! Whether a pod may run on this node, and what it is told when it may not.
