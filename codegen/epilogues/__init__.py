"""What is computed of the sums of a contraction as they leave PSUM."""
