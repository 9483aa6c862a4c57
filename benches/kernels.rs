//! Kernels on arrays that do not fit a cache, and on four elements. `cargo bench --bench kernels`.
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use stowgrad::array::Array;
use stowgrad::dtype::DType;
use stowgrad::kernels::reduce::{self, Axes};
use stowgrad::kernels::{Out, matmul, norm, pointwise, softmax, table};
use stowgrad::layout::Dims;

fn ramp(shape: &[usize]) -> Array {
    let n: usize = shape.iter().product();
    Array::from_slice(shape, &(0..n).map(|i| (i % 997) as f32 / 499.0 - 1.0).collect::<Vec<_>>()).unwrap()
}
fn kernels(c: &mut Criterion) {
    let (s, t) = (ramp(&[4]), ramp(&[4]));
    c.bench_function("add of 4", |b| b.iter(|| pointwise::run(Out(None), "add", &table::Add {}, [&s, &t]).unwrap()));
    let (x, y) = (ramp(&[2048, 2048]), ramp(&[2048, 2048]));
    let mut g = c.benchmark_group("4M elements");
    g.throughput(Throughput::Elements(1 << 22)).sample_size(20);
    g.bench_function("add", |b| b.iter(|| pointwise::run(Out(None), "add", &table::Add {}, [&x, &y]).unwrap()));
    g.bench_function("exp", |b| b.iter(|| pointwise::run(Out(None), "exp", &table::Exp {}, [&x]).unwrap()));
    g.bench_function("sum", |b| b.iter(|| reduce::sum(&x, Axes::All, false, DType::Float32).unwrap()));
    let turned = x.view(x.shape, Dims::of(&[1, 2048]), 0);
    g.bench_function("transposed copy", |b| b.iter(|| pointwise::cast(&turned, DType::Float32).unwrap()));
    g.bench_function("softmax", |b| b.iter(|| softmax::softmax(&x, 1, DType::Float32).unwrap()));
    g.bench_function("layer norm", |b| b.iter(|| norm::layer_norm(&x, &[2048], None, None, 1e-5).unwrap()));
    let rows = x.view(Dims::of(&[1 << 16, 64]), Dims::of(&[64, 1]), 0);
    let of = norm::batch_norm(&rows, None, None, None, true, 0.1, 1e-5).unwrap();
    g.bench_function("gradient of batch norm", |b| {
        b.iter(|| norm::batch_norm_backward(&rows, &rows, None, &of.mean, &of.invstd, true, [true; 3]).unwrap())
    });
    g.finish();
    let (p, q) = (ramp(&[256, 256]), ramp(&[256, 256]));
    c.bench_function("product of 256 x 256", |b| b.iter(|| matmul::mm(&p, &q).unwrap()));
    let (p, q) = (ramp(&[128, 784]), ramp(&[512, 784]));
    let q = q.view(Dims::of(&[784, 512]), Dims::of(&[1, 784]), 0);
    c.bench_function("product of 128 x 784 with 512 rows", |b| b.iter(|| matmul::mm(&p, &q).unwrap()));
}
criterion_group!(benches, kernels);
criterion_main!(benches);
