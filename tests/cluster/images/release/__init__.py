"""The product's images as they are given away: beside each stands what is in it, and what it is made of."""
