//! Back ends that find files by path alone: what they are given stays true (F.6), and what is open
//! stays usable (`Addressing::PathOnly`).

mod contract;
mod races;
mod storm;
mod tree;
mod unlinked;
