/* Heat spreads along a rod that the ranks share: a halo exchange each step, a sum over all ranks every REPORT steps.
 *
 * Usage: mpirun -np N heat STEPS. Rank 0 writes `iterations.log` (step, total heat); every rank writes `rod-RANK.bin`.
 * The order of all arithmetic is fixed for a given number of ranks, so equal runs end in equal bits.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { CELLS = 200000, REPORT = 10 };

static double *make_rod(int rank)
{
    double *rod = malloc((CELLS + 2) * sizeof *rod);
    if (!rod)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < CELLS + 2; i++)
        rod[i] = ((rank * (long)CELLS + i) * 2654435761u % 1000) / 10.0;
    return rod;
}

static void exchange_halo(double *rod, int left, int right)
{
    MPI_Sendrecv(&rod[1], 1, MPI_DOUBLE, left, 0, &rod[CELLS + 1], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(&rod[CELLS], 1, MPI_DOUBLE, right, 1, &rod[0], 1, MPI_DOUBLE, left, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

static double spread(const double *now, double *next)
{
    double total = 0;
    for (int i = 1; i <= CELLS; i++) {
        next[i] = now[i] + 0.25 * (now[i - 1] - 2 * now[i] + now[i + 1]);
        total += next[i];
    }
    return total;
}

static void write_rod(const double *rod, int rank)
{
    char name[32];
    snprintf(name, sizeof name, "rod-%d.bin", rank);
    FILE *file = fopen(name, "wb");
    if (!file || fwrite(&rod[1], sizeof *rod, CELLS, file) != CELLS || fclose(file))
        MPI_Abort(MPI_COMM_WORLD, 2);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long steps = argc > 1 ? atol(argv[1]) : 0;
    double *now = make_rod(rank), *next = make_rod(rank);
    FILE *log = rank == 0 ? fopen("iterations.log", "w") : NULL;
    for (long step = 1; step <= steps; step++) {
        exchange_halo(now, (rank + ranks - 1) % ranks, (rank + 1) % ranks);
        double mine = spread(now, next), total = 0;
        double *swap = now;
        now = next;
        next = swap;
        if (step % REPORT == 0) {
            MPI_Reduce(&mine, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
            if (log) {
                fprintf(log, "%ld %.17g\n", step, total);
                fflush(log);
            }
        }
    }
    write_rod(now, rank);
    if (log)
        fclose(log);
    MPI_Finalize();
    return 0;
}
