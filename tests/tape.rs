//! The tape without an interpreter: gradients, versions, in-place operations on views, long chains, saved bytes.
use stowgrad::alloc;
use stowgrad::array::Array;
use stowgrad::dtype::Scalar;
use stowgrad::engine::{self, Request};
use stowgrad::error::Error;
use stowgrad::ops::{self, Ints, Sizes};
use stowgrad::tape::{Edge, Tensor, no_grad};

fn leaf(v: &[f32]) -> Tensor {
    Tensor::leaf(Array::from_slice(&[v.len()], v).unwrap()).unwrap()
}
/// Backward from `roots` into every leaf: what the tests vary.
fn request(roots: Vec<(Tensor, Option<Tensor>)>) -> Request {
    Request {
        roots,
        edges: vec![],
        retain_graph: false,
        create_graph: false,
        inputs: None,
        keepers: vec![],
        accumulate: true,
        allow_unused: true,
    }
}
fn backward(t: &Tensor, keep: bool) -> Result<(), Box<Error>> {
    engine::run(Request { retain_graph: keep, ..request(vec![(t.clone(), None)]) }).map(|_| ())
}
/// The gradient of `y` with respect to `x` alone.
fn grad_of(y: &Tensor, x: &Tensor, keep: bool, create: bool) -> Tensor {
    let r = Request {
        retain_graph: keep,
        create_graph: create,
        inputs: Some(vec![x.edge()]),
        accumulate: false,
        allow_unused: false,
        ..request(vec![(y.clone(), None)])
    };
    engine::run(r).unwrap().remove(0).unwrap()
}
fn grad(y: &Tensor, x: &Tensor, create: bool) -> Tensor {
    grad_of(y, x, create, create)
}
fn values(t: &Tensor) -> Vec<f64> {
    t.array().to_vec()
}
fn sum(t: &Tensor) -> Tensor {
    ops::sum(t, None).unwrap()
}
fn one() -> Scalar {
    Scalar::Int(1)
}

#[test]
fn products_and_broadcasts_have_gradients_of_any_order() {
    let (a, b) = (leaf(&[2.0, 3.0]), leaf(&[5.0]));
    let y = sum(&ops::mul(&ops::mul(&a, &b).unwrap(), &a).unwrap());
    backward(&y, true).unwrap();
    assert_eq!((values(a.grad().unwrap().tensor()), values(b.grad().unwrap().tensor())), (vec![20.0, 30.0], vec![13.0]));
    let g = grad(&y, &a, true);
    assert_eq!(values(&grad(&sum(&g), &a, false)), vec![10.0, 10.0]);
}
#[test]
fn a_write_after_the_save_is_an_error_that_names_it() {
    let x = leaf(&[1.0, 2.0]);
    let a = ops::mul(&x, &ops::number(2.0).unwrap()).unwrap();
    let y = ops::mul(&a, &a).unwrap();
    ops::add_(&ops::view(&a, Sizes::from_slice(&[2, 1])).unwrap(), &ops::number(1.0).unwrap(), one()).unwrap();
    match *backward(&sum(&y), false).unwrap_err() {
        Error::Modified { ref node, ref slot, found: 1, expected: 0, .. } => {
            assert_eq!((node.as_str(), slot.as_str()), ("MulBackward0", "other"))
        }
        ref e => panic!("{e}"),
    }
    assert!(matches!(*ops::mul_(&x, &x).unwrap_err(), Error::LeafInPlace { .. }));
    assert!(matches!(*ops::mul_(&ops::view(&x, Sizes::from_slice(&[2, 1])).unwrap(), &x).unwrap_err(), Error::ViewOfLeafInPlace { .. }));
    no_grad(|| ops::mul_(&x, &x)).unwrap();
    assert_eq!(values(&x), vec![1.0, 4.0]);
}
#[test]
fn writing_through_a_view_gives_its_base_a_history() {
    let x = leaf(&[1.0, 2.0, 3.0]);
    let b = ops::clone(&x, None).unwrap();
    let v = ops::slice(&b, 0, Some(1), None, 1).unwrap();
    ops::mul_(&v, &ops::number(10.0).unwrap()).unwrap();
    ops::mul_(&ops::select(&b, 0, 0).unwrap(), &ops::clone(&ops::select(&b, 0, 2).unwrap(), None).unwrap()).unwrap();
    assert_eq!(values(&b), vec![30.0, 20.0, 30.0]);
    backward(&sum(&ops::mul(&b, &b).unwrap()), false).unwrap();
    // b = (x0 * 10 x2, 10 x1, 10 x2)
    assert_eq!(values(x.grad().unwrap().tensor()), vec![2.0 * 30.0 * 30.0, 2.0 * 20.0 * 10.0, 2.0 * 30.0 * 10.0 + 2.0 * 30.0 * 10.0]);
    assert_eq!(v.grad_fn().unwrap().0.name(), "AsStridedBackward0");
    assert_eq!(b.grad_fn().unwrap().0.name(), "torch::autograd::CopySlices");
}
/// Walks number a graph by marks on its nodes and leaves; those of one thread must not mislead another's.
#[test]
fn threads_may_walk_one_graph() {
    let (a, b) = (leaf(&[1.0; 4]), leaf(&[1.0; 4]));
    let mut y = a.clone();
    for _ in 0..40 {
        y = ops::add(&ops::mul(&y, &b).unwrap(), &a, one()).unwrap();
    }
    let y = sum(&y);
    let walk = |x: &Tensor| values(&grad_of(&y, x, true, false));
    let (of_a, of_b) = (walk(&a), walk(&b));
    assert_eq!((of_a[0], of_b[0]), (41.0, 820.0));
    std::thread::scope(|s| {
        for x in [&a, &b, &a, &b] {
            s.spawn(|| (0..200).for_each(|_| assert_eq!(walk(x), if x.ptr_eq(&a) { of_a.clone() } else { of_b.clone() })));
        }
    });
}
#[test]
fn a_gradient_that_somebody_holds_is_not_written() {
    let (a, b, c) = (leaf(&[2.0, 3.0]), leaf(&[5.0, 7.0]), leaf(&[11.0, 13.0]));
    // the sum hands one gradient to two products
    let y = ops::add(&ops::mul(&a, &b).unwrap(), &ops::mul(&a, &c).unwrap(), one()).unwrap();
    let given = Tensor::new(Array::from_slice(&[2], &[1.0f32, 10.0]).unwrap());
    engine::run(request(vec![(y, Some(given.clone()))])).unwrap();
    let of = |t: &Tensor| values(t.grad().unwrap().tensor());
    assert_eq!(values(&given), vec![1.0, 10.0]);
    assert_eq!((of(&a), of(&b), of(&c)), (vec![16.0, 200.0], vec![2.0, 30.0], vec![2.0, 30.0]));
}
#[test]
fn an_output_that_a_node_has_not_is_an_error() {
    let x = leaf(&[1.0]);
    let (node, _) = ops::mul(&x, &x).unwrap().grad_fn().unwrap();
    let r = Request { edges: vec![(Edge::Node(node, 1), x.detach())], ..request(vec![]) };
    assert!(matches!(*engine::run(r).unwrap_err(), Error::Runtime(_)));
}
#[test]
fn a_million_nodes_are_walked_and_dropped_without_recursion() {
    let x = leaf(&[1.0]);
    let one = ops::number(1.0).unwrap();
    for walk in [true, false] {
        let mut y = x.clone();
        for _ in 0..1_000_000 {
            y = ops::mul(&y, &one).unwrap();
        }
        if walk {
            backward(&sum(&y), false).unwrap();
        }
    }
    assert_eq!(values(x.grad().unwrap().tensor()), vec![1.0]);
}
#[test]
fn saved_bytes_are_back_where_they_were() {
    let x = leaf(&vec![1.0; 1024]);
    let before = alloc::stats().saved;
    let a = ops::mul(&x, &x).unwrap();
    let y = ops::mul(&a, &a).unwrap();
    assert_eq!(alloc::stats().saved - before, 4096, "one storage, saved in two slots; the leaf is not counted");
    backward(&sum(&y), true).unwrap();
    assert_eq!(alloc::stats().saved - before, 4096);
    backward(&sum(&y), false).unwrap();
    assert_eq!(alloc::stats().saved, before);
    assert!(matches!(*backward(&sum(&y), false).unwrap_err(), Error::Freed { .. }));
}
#[test]
fn joins_and_splits_undo_each_other() {
    let x = leaf(&(0..12).map(|v| v as f32).collect::<Vec<_>>());
    let m = ops::reshape(&x, Sizes::from_slice(&[3, 4])).unwrap();
    let parts = ops::split_with_sizes(&m, Ints::from_slice(&[1, 3]), 1).unwrap();
    let back = ops::cat(vec![parts[1].clone(), ops::mul(&parts[0], &ops::number(3.0).unwrap()).unwrap()], 1).unwrap();
    assert_eq!(values(&back)[..4], [1.0, 2.0, 3.0, 0.0]);
    backward(&sum(&ops::stack(vec![back.clone(), back], 0).unwrap()), false).unwrap();
    assert_eq!(values(x.grad().unwrap().tensor()), [[6.0, 2.0, 2.0, 2.0]; 3].concat());
}
