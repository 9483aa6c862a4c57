//! What the tape costs: recording, walking and dropping a node, on four elements. `cargo bench --bench tape`.
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use stowgrad::array::Array;
use stowgrad::engine::{self, Request};
use stowgrad::ops;
use stowgrad::tape::Tensor;

fn four(leaf: bool) -> Tensor {
    let a = Array::from_slice(&[4], &[1f32; 4]).unwrap();
    if leaf { Tensor::leaf(a).unwrap() } else { Tensor::new(a) }
}
fn backward(t: &Tensor) {
    let r = Request {
        roots: vec![(t.clone(), None)],
        edges: vec![],
        retain_graph: false,
        create_graph: false,
        inputs: None,
        keepers: vec![],
        accumulate: true,
        allow_unused: true,
    };
    engine::run(r).unwrap();
}
fn tape(c: &mut Criterion) {
    let (x, y) = (four(false), four(false));
    c.bench_function("mul, not recorded", |b| b.iter(|| ops::mul(black_box(&x), &y).unwrap()));
    let (x, y) = (four(true), four(true));
    c.bench_function("mul, recorded", |b| b.iter(|| ops::mul(black_box(&x), &y).unwrap()));
    c.bench_function("view", |b| b.iter(|| ops::view(black_box(&x), ops::Sizes::from_slice(&[2, 2])).unwrap()));
    c.bench_function("forward and backward of 1000 products", |b| {
        b.iter(|| {
            let mut z = x.clone();
            for _ in 0..1000 {
                z = ops::mul(&z, &y).unwrap();
            }
            backward(&ops::sum(&z, None).unwrap());
        })
    });
}
criterion_group!(benches, tape);
criterion_main!(benches);
