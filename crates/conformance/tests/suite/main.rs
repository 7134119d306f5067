//! Tests of the suite: it accepts the back ends of this repository, and finds planted bugs.

mod backends;
mod flawed;
mod flaws;
mod memory;
