//! Tests of the library over loopback, and of the program.

mod serve;
