//! Contains no code. A crate that depends on this one gets DataFusion, and the crates below it, with the features that its manifest
//! lists, and so shares their build with the other programs of memferry.
