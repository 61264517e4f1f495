"""What passes and code generation ask about a module; none of it changes anything."""
